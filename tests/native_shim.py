"""Builds of llama.cpp with a fault put in on purpose: the installed libraries behind one of ours, compiled here."""

import shutil
import subprocess
from pathlib import Path

from mlsd.engine.llama.build.loaded import plain_name
from mlsd.engine.llama.build.prebuilt import libraries_of
from mlsd.measure.parent.builds import installed
from tests.needs import needed

HEAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct batch { int32_t n; int32_t *token; float *embd; int32_t *pos; int32_t *n_seq; int32_t **seq; int8_t *logits; };

static void *real(const char *name) {
    return dlsym(dlopen("libllama.so.0", RTLD_LAZY | RTLD_NOLOAD), name);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int32_t decode(void *context, struct batch batch) {
    return ((int32_t (*)(void *, struct batch)) real("llama_decode"))(context, batch);
}
"""

SLOWER = """
int32_t llama_decode(void *context, struct batch batch) {
    double began = now();
    int32_t code = decode(context, batch);
    double until = now() + (now() - began) * %f;
    while (now() < until) { }
    return code;
}
"""

# Far into a text every token is read as another: the known pass is too short to see it.
OTHER_MODEL = """
int32_t llama_decode(void *context, struct batch batch) {
    int32_t *own = batch.token, other[8192];
    if (own && batch.n <= 8192) {
        for (int i = 0; i < batch.n; i++) other[i] = batch.pos[i] > %d ? own[i] ^ 3 : own[i];
        batch.token = other;
    }
    return decode(context, batch);
}
"""

ABORTS = "int32_t llama_decode(void *context, struct batch batch) { abort(); }"

LONGER = """
struct longer { char bytes[176]; };
struct longer llama_context_default_params(void) { struct longer all; memset(&all, 1, sizeof all); return all; }
"""

# What ggml-metal registers where MTLCreateSystemDefaultDevice() returns nil: a device without name and memory.
NO_GPU = """
int llama_supports_gpu_offload(void) { return 1; }
int ggml_backend_dev_type(void *device) { return 1; }
const char *ggml_backend_dev_name(void *device) { return "MTL0"; }
const char *ggml_backend_dev_description(void *device) { return ""; }
void ggml_backend_dev_memory(void *device, size_t *free, size_t *total) { *free = *total = 0; }
"""

UNKNOWN = """
struct params { char bytes[80]; };
void *llama_model_load_from_file(const char *path, struct params params) {
    if (strstr(path, "new-architecture")) return 0;
    return ((void *(*)(const char *, struct params)) real("llama_model_load_from_file"))(path, params);
}
"""

_TRAP = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void spring(void) { close(open(SPRUNG, O_CREAT | O_WRONLY, 0600)); }
int ggml_backend_score(void) { return 1 << 30; }
void *ggml_backend_init(void) { return 0; }
"""


def installed_libraries() -> Path:
    """The folder of the shared libraries that are installed, or of links to them."""
    return libraries_of(installed())


def copy_of_installed(folder: Path) -> Path:
    """The same libraries elsewhere, in files of their own, which a test may spoil; a link leads to a file beside it."""
    folder.mkdir(parents=True)
    for path in installed_libraries().iterdir():
        if path.is_symlink() and path.readlink().name == str(path.readlink()):
            (folder / path.name).symlink_to(path.readlink())
        elif path.is_file():
            shutil.copyfile(path, folder / path.name)
    return folder


def copy_of_package(folder: Path) -> Path:
    """The package `llama_cpp` with the libraries inside it, as one that was compiled has them."""
    shutil.copytree(installed(), folder, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    copy_of_installed(folder / "lib")
    return folder


def library(folder: Path, stem: str) -> Path:
    """The file of one library, whatever version its name has."""
    return next(folder.glob(f"lib{stem}.*")).resolve()


def faulty_build(folder: Path, code: str) -> Path:
    """A folder of libraries in which `code` stands before llama.cpp's own functions of the same names."""
    compiler = needed("linux-cc")
    copy_of_installed(folder)
    (folder / plain_name("llama")).unlink()
    (folder / "libggml-vulkan.so").unlink(missing_ok=True)  # 44 MB that no test needs
    source = folder / "fault.c"
    source.write_text(HEAD + code, encoding="utf-8")
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", folder / "libllama.so", source, f"-L{folder}"]
    links = ["-Wl,--no-as-needed", "-l:libllama.so.0", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined", "-ldl"]
    subprocess.run([*command, *links], check=True)
    return folder


def trap(folder: Path, sprung: Path) -> Path:
    """A library whose constructor leaves the file `sprung`."""
    compiler = needed("cc")
    source, made = folder / "trap.c", folder / "trap.so"
    source.write_text(f'#define SPRUNG "{sprung}"\n{_TRAP}', encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    return made

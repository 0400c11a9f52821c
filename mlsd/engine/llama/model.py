"""The weights of a GGUF file in llama.cpp, shared by every context over them; and its tokenizer."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlsd.engine.llama.native import LOG, fail, library, working_device
from mlsd.engine.vocabulary import Vocabulary
from mlsd.errors import ModelFileError
from mlsd.gguf_tools.source import Source


class LlamaModel:
    """The weights of one GGUF file; several contexts can share them, and are closed with it.

    With `vocab_only` it can turn text into tokens and back, and nothing else; `simulated`, it has no weights, and its
    contexts tell what memory they would take (`footprint`). `check_weights` refuses weights that are no finite numbers.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = -1,
        load_mtp: bool = False,
        vocab_only: bool = False,
        simulated: bool = False,
        check_weights: bool = False,
        n_experts_used: int | None = None,
    ) -> None:
        """Load the file. `n_experts_used` goes in place of what it says of its router."""
        check_gguf(path)
        self._native = native = library()
        if not vocab_only:
            working_device(n_gpu_layers)
        params = native.llama_model_default_params()
        params.n_gpu_layers = 1_000 if n_gpu_layers < 0 else n_gpu_layers
        params.load_mtp = load_mtp
        params.vocab_only = vocab_only
        params.check_tensors = check_weights
        params.use_extra_bufts = not check_weights  # to repack weights that are only looked at takes their size again
        if simulated:
            params.no_alloc, params.load_mode = True, native.LLAMA_LOAD_MODE_NONE  # a mapped file would be weights
        if n_experts_used is not None:
            params.kv_overrides = self._overrides = _expert_override(path, n_experts_used)
        LOG.drain()
        self.handle: Any = native.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            reasons = LOG.drain()[-3:]
            if broken := next((line for line in reasons if "has invalid data" in line), None):
                raise ModelFileError(
                    f"{path} holds weights that are NaN or infinite: {broken.partition(': ')[2]}.",
                    hint="What it writes would be nonsense at any speed. Convert it or fetch it again.",
                )
            raise ModelFileError(
                f"llama.cpp cannot load {path}: {'; '.join(reasons) or 'no reason given'}.",
                hint="The file may be truncated or of an architecture this llama.cpp does not know; download it again.",
            )
        self.path = path
        self.contexts: dict[int, Any] = {}  # that are open on it, by id, in the order of their opening
        atexit.register(self.close)  # Metal's own clean-up aborts where a model or a context is still open
        try:
            self._read_facts()
        except BaseException:
            self.close()
            raise
        self.has_next_token_block = bool(load_mtp and native.llama_model_n_layer_nextn(self.handle) > 0)

    def _read_facts(self) -> None:
        native = self._native
        name = ctypes.create_string_buffer(64)
        if native.llama_model_meta_val_str(self.handle, b"general.architecture", name, len(name)) < 0:
            raise fail(f"llama.cpp does not state the architecture of {self.path.name}")
        self.architecture = name.value.decode("utf-8", "replace")
        self.vocab: Any = native.llama_model_get_vocab(self.handle)
        bos, eos = native.llama_vocab_bos(self.vocab), native.llama_vocab_eos(self.vocab)
        self.vocabulary = Vocabulary(
            kind=native.llama_vocab_type(self.vocab),
            n_tokens=native.llama_vocab_n_tokens(self.vocab),
            bos=bos if bos >= 0 else None,
            eos=eos if eos >= 0 else None,
            adds_bos=bool(native.llama_vocab_get_add_bos(self.vocab)),
            adds_eos=bool(native.llama_vocab_get_add_eos(self.vocab)),
        )
        self.window = int(native.llama_model_n_swa(self.handle))  # positions that some layers see (0: all see all)
        self.n_ctx_train = int(native.llama_model_n_ctx_train(self.handle))
        self.is_recurrent = bool(
            native.llama_model_is_recurrent(self.handle) or native.llama_model_is_hybrid(self.handle)
        )

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> tuple[int, ...]:
        data = text.encode()
        size = len(data) + 8
        for _ in range(2):
            buffer = (self._native.llama_token * size)()
            count = self._native.llama_tokenize(self.vocab, data, len(data), buffer, size, add_special, parse_special)
            if count >= 0:
                return tuple(buffer[:count])
            size = -count
        raise fail("llama.cpp cannot tokenize the prompt", count)

    def detokenize(self, tokens: Sequence[int]) -> str:
        ids = (self._native.llama_token * max(1, len(tokens)))(*tokens)
        size = 16 * len(tokens) + 16
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            count = self._native.llama_detokenize(self.vocab, ids, len(tokens), buffer, size, False, True)
            if count >= 0:
                return buffer.raw[:count].decode("utf-8", "replace")
            size = -count
        raise fail("llama.cpp cannot turn tokens into text", count)

    def token_text(self, token: int) -> str:
        text: bytes | None = self._native.llama_vocab_get_text(self.vocab, token)
        return (text or b"").decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        return bool(self._native.llama_vocab_is_eog(self.vocab, token))

    def is_control(self, token: int) -> bool:
        return self.is_end(token) or bool(self._native.llama_vocab_is_control(self.vocab, token))

    def close(self) -> None:
        if self.handle:
            atexit.unregister(self.close)
            for context in reversed([*self.contexts.values()]):
                context.close()
            self._native.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _expert_override(path: Path, n_used: int) -> Any:
    """Entries that llama.cpp reads in place of a file's own, up to one without a name."""
    native = library()
    entries = (native.llama_model_kv_override * 2)()
    entries[0].key = f"{Source(path).architecture}.expert_used_count".encode()
    entries[0].tag = native.LLAMA_KV_OVERRIDE_TYPE_INT
    entries[0].value.val_i64 = n_used
    return entries


def check_gguf(path: Path) -> None:
    """Refuse an unreadable GGUF, all its files included, before the native library. Raises: ModelFileError."""
    Source(path).shards()

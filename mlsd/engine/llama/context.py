"""The real context: llama.cpp through the low-level bindings, every return code checked, every handle freed."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import numpy as np

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG, device_failed, fail, library
from mlsd.engine.llama.rows import LayerRows
from mlsd.engine.tree import Tree
from mlsd.errors import EngineError, MlsdError, UnsupportedError

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q5_0": 6, "q8_0": 8, "bf16": 30}  # enum ggml_type
_DECODE_FAILURES = {
    1: "no free memory slot for the batch",
    2: "the computation was aborted",
    -1: "the batch was refused",
}


class _SavedState(NamedTuple):
    """A recurrent state that was saved, and how llama.cpp is asked for it."""

    data: Any
    n_bytes: int
    sequence: int  # it is borrowed from
    flags: int


class LlamaContext:
    """One llama.cpp context with one sequence (id 0); see `context.Context` for the contract of each method."""

    failed_native_calls = 0
    _sequence = 0  # through which new tokens look back

    def __init__(self, model: LlamaModel, options: ContextOptions, adjust: Callable[[Any], None] | None = None) -> None:
        """`adjust` makes last changes to llama.cpp's parameters."""
        self._native = library()
        self.model = self.tokenizer = model
        self._stack = ExitStack()
        self.options, self.window = options, model.window
        self.last_width = 0
        self.on_pass: Callable[[], None] | None = None  # called behind each pass; None where passes are timed
        self.n_past = 0
        self._first_row = self._n_outputs = 0
        self._states: dict[int | None, _SavedState] = {}
        self._address, self._view = 0, np.empty((0, 0), dtype=np.float32)  # of the newest outputs
        self._logits_at = self._native._lib["llama_get_logits_ith"]  # which gives a number in place of a pointer object
        self._logits_at.restype, self._logits_at.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int32]
        try:
            self.handle: Any = self._open_context(adjust)
            self.memory: Any = self._native.llama_get_memory(self.handle)
            if not self.memory:
                raise UnsupportedError(f"{model.path.name} keeps no memory.", hint="Give a model that generates text.")
            self.n_ctx = int(self._native.llama_n_ctx(self.handle))
            self._layer_rows = None
            if options.kind == "layer-rows":
                self._layer_rows = LayerRows(model, self.handle, self.n_ctx)
        except BaseException:
            self._stack.close()
            raise
        self._make_batch()
        model.contexts[id(self)] = self
        self._stack.callback(model.contexts.pop, id(self))
        self._most_positions = self.n_ctx if options.checked else sys.maxsize
        self._most_rows, self._most_outputs = options.n_batch, options.max_outputs
        self._on_device = options.device_sampling
        self.n_snapshots = int(self._native.llama_n_rs_seq(self.handle))

    # --- opening and closing ------------------------------------------------------------------------------------

    def _open_context(self, adjust: Callable[[Any], None] | None) -> Any:
        native, options = self._native, self.options
        params = native.llama_context_default_params()
        params.n_ctx = options.n_ctx
        params.n_batch = options.n_batch
        # Rollback inside a batch needs the whole verification in one micro-batch.
        params.n_ubatch = self._n_ubatch = max(options.n_ubatch, options.n_snapshots + 2)
        params.n_seq_max = n_sequences = options.n_all_sequences
        # Layers with a window keep every position: one that goes back would miss the oldest of its window otherwise.
        params.swa_full = True
        params.kv_unified = n_sequences > 1
        params.n_rs_seq = options.n_snapshots
        # 0 would mean n_batch, and with the sampler in the graph every one of these rows costs copies of the logits:
        # 977 MiB of compute buffer for 248,320 tokens where 43 do. One row for each sequence is the least there is.
        params.n_outputs_max = max(options.max_outputs, n_sequences)
        params.n_outputs_max_per_seq = options.max_outputs
        params.n_threads = params.n_threads_batch = options.n_threads
        params.flash_attn_type = _FLASH_ATTENTION[options.flash_attention]
        params.type_k = params.type_v = _KV_TYPES[options.kv_type]
        params.op_offload = options.n_gpu_layers != 0  # else large batches go to the device that was not asked for
        params.no_perf = True
        if options.device_sampling:
            self._attach_greedy_sampler(params)
        if adjust is not None:
            adjust(params)
        LOG.drain()
        handle = native.llama_init_from_model(self.model.handle, params)
        if not handle:
            raise fail(
                f"llama.cpp cannot create a context of {options.n_ctx} positions for {self.model.path.name}",
                hint="Too little memory is the usual reason: a smaller context, model or quantization helps.",
            )
        self._stack.callback(native.llama_free, handle)
        return handle

    def _attach_greedy_sampler(self, params: Any) -> None:
        native = self._native
        chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        if not chain:
            raise fail("llama.cpp cannot create a chain of samplers")
        self._stack.callback(native.llama_sampler_free, chain)
        greedy = native.llama_sampler_init_greedy()
        if not greedy:
            raise fail("llama.cpp cannot create a greedy sampler")
        native.llama_sampler_chain_add(chain, greedy)  # from here on the chain frees it
        configs = (native.llama_sampler_seq_config * 1)()
        configs[0].seq_id = 0
        configs[0].sampler = ctypes.cast(chain, ctypes.c_void_p)
        params.samplers = configs
        params.n_samplers = 1

    def _make_batch(self) -> None:
        """A batch over arrays, whose fields are filled by slices instead of a loop of ctypes stores."""
        size = self.options.n_batch
        self._tokens = np.zeros(size, dtype=np.int32)
        self._positions = np.zeros(size, dtype=np.int32)
        self._wanted = np.zeros(size, dtype=np.int8)
        self._counting = np.arange(size, dtype=np.int32)
        self._n_ids = np.ones(size, dtype=np.int32)
        # A row's sequences are neighbours, so its list of ids is a slice of this one array: here sequence 0.
        self._ids = np.arange(self.options.n_sequences, dtype=np.int32)
        self._id_lists = np.full(size, self._ids.ctypes.data, dtype=np.uint64)
        self._batch: Any = self._native.llama_batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._n_ids),
            ("seq_id", self._id_lists),
            ("logits", self._wanted),
        ):
            kind = type(getattr(self._batch, name))
            setattr(self._batch, name, ctypes.cast(ctypes.c_void_p(array.ctypes.data), kind))

    def on_close(self, free: Callable[[Any], Any], handle: Any) -> None:
        """Free a handle before the context, over which it was made."""
        self._stack.callback(free, handle)

    def close(self) -> None:
        self._stack.close()
        self.handle = self.memory = None
        self._states = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def model_key(self) -> object:
        return id(self.model)

    @property
    def layer_rows(self) -> LayerRows:
        """What it keeps of every position; it was opened to keep rows (`ContextOptions.kind`)."""
        assert self._layer_rows is not None
        return self._layer_rows

    @property
    def has_position_axes(self) -> bool:
        """Whether a position has several axes (M-RoPE), which its memory cells then hold."""
        kind = self._native.llama_model_rope_type(self.model.handle)
        return kind in (self._native.LLAMA_ROPE_TYPE_MROPE, self._native.LLAMA_ROPE_TYPE_IMROPE)

    # --- decoding -------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        width, n_past = len(tokens), self.n_past
        if n_past + width > self._most_positions:
            raise EngineError(
                f"{n_past + width} positions do not fit into a context of {self.n_ctx}.",
                hint="Give a shorter prompt, a smaller n_predict or a larger context.",
            )
        if width > self._most_rows:
            before = (width - 1) // self._most_rows * self._most_rows
            for start in range(0, before, self._most_rows):
                self.decode(tokens[start : start + self._most_rows], n_outputs=0)
            self.decode(tokens[before:], n_outputs=n_outputs)
            return
        if n_outputs > width:
            raise EngineError(f"{n_outputs} output rows were asked of a batch of {width} tokens.")
        if n_outputs > self._most_outputs:
            self._refuse_outputs(n_outputs)
        if width == 1:  # single stores, for slices of one take several times as long
            self._tokens[0], self._positions[0], self._wanted[0] = tokens[0], n_past, n_outputs
        else:
            self._tokens[:width] = tokens
            np.add(self._counting[:width], n_past, out=self._positions[:width])
            self._wanted[: width - n_outputs] = 0
            self._wanted[width - n_outputs : width] = 1
        if width:
            self._submit(width)
        self._first_row, self._n_outputs = width - n_outputs, n_outputs
        self.last_width = width if width <= self._n_ubatch else (width - 1) % self._n_ubatch + 1
        self.n_past = n_past + width
        if self.on_pass is not None:
            self.on_pass()

    def decode_tree(self, root: int, tree: Tree) -> None:
        raise EngineError("A tree was proposed to a context that verifies chains.")

    def keep_path(self, path: Sequence[int]) -> int:
        raise EngineError("A path of a tree was accepted in a context that verifies chains.")

    def _refuse_outputs(self, n_outputs: int) -> None:
        """Of more output rows than the context was made for llama.cpp would end the process."""
        raise EngineError(
            f"{n_outputs} output rows were asked of a context made for {self.options.max_outputs}.",
            hint="This is a fault of mlsd; please report it.",
        )

    def _submit(self, width: int) -> None:
        """Run the batch of so many rows, and wait for the device."""
        native, batch, handle, n_errors = self._native, self._batch, self.handle, LOG.n_errors
        batch.n_tokens = width
        code = native.llama_decode(handle, batch)
        if code == 0:
            self.wait(n_errors)
            if self._layer_rows is not None:
                self._layer_rows.take(self._positions[:width])
        else:
            reason = _DECODE_FAILURES.get(code, "llama.cpp failed")
            self._failed(fail(f"Decoding {width} rows at position {self.n_past} failed: {reason}", code))

    def wait(self, n_errors: int) -> None:
        """For the device. Raises: NativeError where the log holds more than `n_errors` then, which no code tells."""
        self._native.llama_synchronize(self.handle)
        if LOG.n_errors != n_errors:
            raise device_failed()

    def _failed(self, error: MlsdError) -> None:
        raise error

    def greedy(self) -> list[int]:
        n_outputs = self._n_outputs
        if not self._on_device:
            rows = self._rows()
            return [int(rows.argmax())] if n_outputs == 1 else rows.argmax(axis=1).tolist()
        read, handle, first = self._native.llama_get_sampled_token_ith, self.handle, self._first_row
        tokens = [read(handle, first)] if n_outputs == 1 else [read(handle, first + i) for i in range(n_outputs)]
        if n_outputs and min(tokens) < 0:
            self._failed(fail("llama.cpp has no sampled token for an output row"))
        return tokens

    def logits(self) -> Logits:
        return self._rows().copy()

    def row(self, node: int) -> Logits:
        return self.output_row(self._first_row + 1 + node)

    def output_row(self, i: int) -> Logits:
        """Logits after the i-th token of the last pass, shape (n_vocab,), no copy."""
        pointer = self._native.llama_get_logits_ith(self.handle, i)
        if not pointer:
            raise fail(f"llama.cpp has no logits for row {i} of a pass")
        return np.ctypeslib.as_array(pointer, shape=(self.tokenizer.vocabulary.n_tokens,))

    def _rows(self) -> Logits:
        """The same where they lie, one row behind the other, until the next pass."""
        n_outputs = self._n_outputs
        if self._on_device:
            raise EngineError("This context samples on the device; open one with device_sampling=False for logits.")
        address = self._logits_at(self.handle, self._first_row) if n_outputs else 0
        if n_outputs and not address:
            raise fail("llama.cpp has no logits for its output rows")
        if address != self._address or n_outputs != len(self._view):  # making a view takes longer than reading from it
            shape = (n_outputs, self.tokenizer.vocabulary.n_tokens)
            self._address, self._view = address, np.empty(shape, dtype=np.float32)
            if n_outputs:
                pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
                self._view = np.ctypeslib.as_array(pointer, shape=shape)
        return self._view

    # --- memory ---------------------------------------------------------------------------------------------------

    def truncate(self, n_past: int) -> None:
        if not self._native.llama_memory_seq_rm(self.memory, 0, n_past, -1):
            self._failed(
                EngineError(
                    f"llama.cpp cannot cut {self.model.path.name} back from position {self.n_past} to {n_past}.",
                    hint="Its memory is recurrent; `mlsd doctor model MODEL` shows which rollbacks are exact for it.",
                )
            )
        self.n_past = n_past

    def cut(self, sequence: int, first: int, end: int = -1) -> None:
        """Forget positions of a sequence (-1: of all). Raises: EngineError."""
        if not self._native.llama_memory_seq_rm(self.memory, sequence, first, end):
            raise EngineError(f"llama.cpp cannot forget positions {first} to {end} of sequence {sequence}.")

    def save_state(self, slot: int | None = None) -> None:
        """Remember the recurrent state: on the device, or in a further one where the options say."""
        native, saved = self._native, self._states.get(slot)
        sequence = self._spare_sequence(slot) if saved is None else saved.sequence
        if sequence:
            # The device keeps one copy a sequence. Here it holds the state alone: of the attention no position.
            native.llama_memory_seq_cp(self.memory, 0, sequence, self.n_past, self.n_past)
        if saved is None:  # a state keeps its size, and to ask for it takes as long as to save one
            flags = native.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
            if slot is None or self.options.saved_on_device:
                flags |= native.LLAMA_STATE_SEQ_FLAGS_ON_DEVICE
            size = int(native.llama_state_seq_get_size_ext(self.handle, sequence, flags))
            saved = self._states[slot] = _SavedState((ctypes.c_uint8 * size)(), size, sequence, flags)
        written = native.llama_state_seq_get_data_ext(self.handle, saved.data, saved.n_bytes, sequence, saved.flags)
        if written != saved.n_bytes or written == 0:
            raise fail(f"Saving the recurrent state wrote {written} of {saved.n_bytes} bytes")
        if sequence:
            self.cut(sequence, -1)

    def _spare_sequence(self, slot: int | None) -> int:
        """The sequence under which the device keeps a state; 0 for what needs none of its own."""
        if slot is not None and not 0 <= slot < self.options.n_saved_states:
            raise EngineError(
                f"A state was to be saved in place {slot} of {self.options.n_saved_states}.",
                hint="This is a fault of mlsd; please report it.",
            )
        return 1 + slot if slot is not None and self.options.saved_on_device else 0

    def load_state(self, slot: int | None = None) -> None:
        native, saved, n_errors = self._native, self._states.get(slot), LOG.n_errors
        if saved is None:
            raise EngineError("There is no saved state to load.", hint="Call save_state first.")
        read = native.llama_state_seq_set_data_ext(self.handle, saved.data, saved.n_bytes, 0, saved.flags)
        if read != saved.n_bytes:
            raise fail(f"Loading the recurrent state took {read} of {saved.n_bytes} bytes")
        self.wait(n_errors)

    def copy_memory(self) -> Any:
        return self.read_sequence(self._sequence)

    def read_sequence(self, sequence: int, flags: int = 0) -> Any:
        """The bytes in which llama.cpp keeps the memory of a sequence, or what of it the flags name."""
        size = int(self._native.llama_state_seq_get_size_ext(self.handle, sequence, flags))
        data = (ctypes.c_uint8 * size)()
        written = self._native.llama_state_seq_get_data_ext(self.handle, data, size, sequence, flags)
        if written != size or size == 0:
            raise fail(f"Reading the memory of {self.model.path.name} gave {written} of {size} bytes")
        return data

    def set_memory(self, data: Any, n_past: int) -> None:
        self.clear()
        if self._native.llama_state_seq_set_data_ext(self.handle, data, len(data), 0, 0) != len(data):
            raise fail(f"Copying the memory of {self.model.path.name} ({len(data)} bytes) failed")
        self.n_past = n_past

    def clear(self) -> None:
        self._native.llama_memory_clear(self.memory, True)
        self.n_past = self.last_width = 0
        self._states = {}

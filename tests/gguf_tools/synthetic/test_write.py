import pytest

from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.write import write_random


@pytest.mark.parametrize("precision", ["Q8_0", "F16", "F32"])
def test_one_seed_gives_the_same_bytes_and_another_seed_others(tmp_path, precision):
    first, again, other = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    counted = []
    write_random(first, TINY["llama"], seed=5, precision=precision, on_bytes=lambda *counts: counted.append(counts))
    write_random(again, TINY["llama"], seed=5, precision=precision)
    write_random(other, TINY["llama"], seed=6, precision=precision)
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()
    n_bytes = sum(tensor.n_bytes for tensor in Source(first).tensors)
    assert counted == sorted(counted) and counted[-1] == (n_bytes, n_bytes), "every byte is counted"


def test_an_existing_file_is_replaced_only_by_a_whole_one(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"before")

    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_random(path, TINY["llama"], seed=0, on_bytes=fail)
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["x.gguf"]

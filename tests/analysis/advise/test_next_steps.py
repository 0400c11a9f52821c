"""Commands that follow from what is not known yet."""

from __future__ import annotations

from mlsd.analysis.advise.next_steps import ToTime, next_steps, timing_commands

MOE = ToTime(shape="qwen3.5-35b-a3b", quant="Q4_K_M", n_layers=40, is_mixture=True)
SMALL = ToTime(shape="qwen3.5-0.8b", quant="Q8_0", n_layers=24, whole=True)


def test_a_large_shape_is_timed_at_two_depths_and_a_small_one_whole() -> None:
    assert list(timing_commands([MOE, SMALL])) == [
        "mlsd models make synth qwen3.5-35b-a3b --quant Q4_K_M --layers 4 --router-shared 0.33 -o 35b-4.gguf && "
        "mlsd calibrate 35b-4.gguf --budget-s 60",
        "mlsd models make synth qwen3.5-35b-a3b --quant Q4_K_M --layers 8 --router-shared 0.33 -o 35b-8.gguf && "
        "mlsd calibrate 35b-8.gguf --budget-s 60",
        "mlsd models make synth qwen3.5-0.8b --quant Q8_0 -o 0.8b.gguf && mlsd calibrate 0.8b.gguf --budget-s 60",
    ]


def test_what_was_timed_is_not_asked_for_again() -> None:
    four = ToTime(shape="qwen3.5-35b-a3b", quant="Q8_0", n_layers=40, depths=(4,))
    (command,) = timing_commands([four])
    assert "--layers 8" in command


def test_downloads_are_advised_only_of_files_that_fit() -> None:
    fetch = ("qwen3.5-35b-a3b-q8_0", "qwen3.5-0.8b-q8_0")
    (step,) = next_steps("t", None, ["d"], [], ["acceptance", "decision"], fetch=fetch)
    assert step.startswith("mlsd models pull qwen3.5-35b-a3b-q8_0 qwen3.5-0.8b-q8_0 && mlsd bench")
    (step,) = next_steps("t", None, ["d"], [], ["memory", "acceptance", "decision"], fetch=fetch)
    assert "No file of t fits" in step

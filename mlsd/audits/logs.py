"""Logs of programs as rows: a new wording is a line of the table `LINES`.

A line is a pattern whose groups are named by fields. Lines of one answer follow each other; one that says again what is
said already begins the next answer.
"""

import re

from mlsd.audits.rows import PastedRow
from mlsd.records import NO_DRAFTER

_R = r"(?P<tok_s>\d+(?:[.,]\d+)*)"
_N = r"\s*=\s*"
# Each: what it matches, and cells that hold for every row of it.
LINES: tuple[tuple[re.Pattern[str], dict[str, str]], ...] = tuple(
    (re.compile(pattern), more)
    for pattern, more in (
        # mtp-bench
        (r"\s*(?P<prompt>\S+)\s+pred=\s*(?P<n_output>\d+)\s+draft=\s*(?P<n_proposed>\d+)\s+acc=\s*(?P<n_accepted>\d+)\s+"
         r"rate=\s*(?P<acceptance>\S+)(?:\s+tok/s=\s*(?P<tok_s>[\d.]+))?", {"program": "mtp-bench"}),
        # llama-server and llama-cli, of every year; a fork writes `= 45.95 tok/s`
        (rf"(?<!prompt )\beval time{_N}[\d.]+ ms /\s*(?P<n_output>\d+) (?:tokens|runs)"
         rf"(?:.*?[,=(]\s*{_R} (?:tokens per second|tok/s|t/s))?", {}),
        (rf"draft acceptance(?: rate)?{_N}(?P<acceptance>[\d.]+)\s*\(\s*(?P<n_accepted>\d+) accepted /\s*"
         rf"(?P<n_proposed>\d+) generated\)(?:.*?mean len{_N}(?P<mgl>[\d.]+))?", {}),
        (rf"\[ Prompt: [\d.]+ t/s \| Generation: {_R} t/s", {"program": "llama-cli"}),
        # llama-speculative sums up an answer so
        (rf"\b(?:decoded|generated)\s+(?P<n_output>\d+) tokens in\s+[\d.]+ seconds, speed:\s+{_R} t/s",
         {"summed": "1"}),
        (rf"\bn_draft{_N}(?P<gamma>\d+)$", {}),
        (rf"\bn_drafted{_N}(?P<n_proposed>\d+)$", {}),
        (rf"\bn_accept{_N}(?P<n_accepted>\d+)$", {}),
        # vLLM, of both wordings; the throughput stands in a line of its own
        (rf"Avg generation throughput: {_R} tokens/s, Running: (?P<users>\d+) reqs", {"program": "vLLM"}),
        (r"SpecDecoding metrics:? .*?Mean acceptance length: (?P<mgl>[\d.]+).*?Accepted: (?P<n_accepted>\d+) tokens, "
         r"Drafted: (?P<n_proposed>\d+) tokens(?:.*?Avg Draft acceptance rate: (?P<acceptance>[\d.]+%))?",
         {"program": "vLLM", "drafter": "spec"}),
        (r"Speculative metrics: Draft acceptance rate: (?P<acceptance>[\d.]+).*?Number of speculative tokens: "
         r"(?P<gamma>\d+), Number of accepted(?: draft)? tokens: (?P<n_accepted>\d+), Number of draft tokens: "
         r"(?P<n_proposed>\d+)", {"program": "vLLM", "drafter": "spec"}),
        # SGLang
        (rf"Decode batch.*?#running-req: (?P<users>\d+).*?(?:accept len: (?P<mgl>[\d.]+).*?)?"
         rf"gen throughput \(token/s\): {_R}", {"program": "SGLang"}),
        # mlx_lm and mlx-vlm
        (rf"(?:(?P<drafter>[\w -]+): )?Generation: (?P<n_output>\d+) tokens, {_R} tokens-per-sec", {"program": "mlx"}),
        (r"[Ss]peculative(?: decoding)?: (?P<mgl>[\d.]+) accepted tokens/round", {"drafter": "spec"}),
        # mlx-dspark
        (rf"(?P<n_output>\d+) tokens · [\d.]+ ?s · {_R} tok/s"
         r"(?: · accept (?P<mgl>[\d.]+)/round · (?P<rounds>\d+) target fwds)?",
         {"program": "mlx-dspark"}),
        # oMLX's DFlash divides accepted by output tokens
        (rf"(?P<drafter>DFlash|MTP|DSpark) generation complete: (?P<n_output>\d+) tokens, {_R} tok/s, "
         r"acceptance=(?P<acceptance>[\d.]+%), cycles=(?P<rounds>\d+)", {"program": "oMLX", "acceptance_of": "output"}),
        # mlxcel
        (rf"\[bench/(?P<drafter>\w+)\] Done: prompt=(?P<n_prompt>\d+) .*?generated=(?P<n_output>\d+) tok/s={_R}",
         {"program": "mlxcel"}),
        # MTPLX: arms of `tune`, AR and D1 to D3
        (rf"^\s*(?:\[?tune\]?:?\s+)?(?P<drafter>AR|D\d|depth[ =]\d)\b\s*[:=|]?\s+{_R} ?tok/s"
         r"(?:.*?accept\w*[ :=]+(?P<acceptance>[\d.]+ ?%?))?", {"program": "MTPLX"}),
        # text-generation-webui
        (rf"Output generated in [\d.]+ seconds \({_R} tokens/s, (?P<n_output>\d+) tokens, context (?P<n_prompt>\d+)",
         {"program": "text-generation-webui"}),
        # Ollama --verbose
        (rf"^eval rate:\s+{_R} tokens/s", {"program": "ollama"}),
    )
)  # fmt: skip
_ENDS = re.compile(r"prompt eval time|prompt eval rate")
_FAILED = re.compile(r"failed to decode|llama_decode.* failed")
_MODEL = re.compile(r"(?:^|\s)(?:-m|--model|-hf|-hfr?|--hf-repo)\s+(\S+)")
_PROGRAMS = re.compile(r"llama-\w+|mtplx|mlx_lm|vllm|sglang")
_N_MAX = re.compile(r"--(?:spec-)?draft(?:-n)?-max\s+(\d+)")
_COUNTED = ("tok_s", "n_proposed", "mgl", "gamma", "n_accepted", "n_output")
_OF_DRAFT = re.compile(r"^\s*(?:draft|target):\s*$")


def log_rows(lines: list[str]) -> tuple[list[PastedRow], list[int]]:
    """Rows of a log, and the numbers of the lines that say nothing; a command above names model and n-max.

    How many tokens of a prompt were read says nothing of how deep the context is: a server keeps what it read before.
    What failed to decode belongs to the answer that is timed next.
    """
    rows, skipped = list[PastedRow](), list[int]()
    around, last = dict[str, str](), dict[str, str]()
    title, failed, begun = "", 0, 0

    def end() -> None:
        nonlocal failed, last
        cells, last = {name: cell for name, cell in last.items() if name != "summed"}, {}
        if not (cells.get("tok_s") or "n_proposed" in cells):
            return
        if cells.get("n_proposed") == "0":
            cells = {n: cell for n, cell in cells.items() if n not in ("n_proposed", "n_accepted", "acceptance")}
            cells["drafter"] = NO_DRAFTER
        drafted = cells.get("drafter") != NO_DRAFTER and {"n_proposed", "mgl", "acceptance", "drafter"} & set(cells)
        command = around if drafted else {name: cell for name, cell in around.items() if name == "target"}
        cells = command | cells | ({"failed_calls": str(failed)} if failed else {})
        rows.append(PastedRow(line=begun, table=title, cells=cells | {"answer": f"answer {begun}"}))
        failed = 0

    for number, line in enumerate(lines, 1):
        is_read = not line.strip() or line.startswith("#") or "|" in line
        if line.startswith("#"):
            title = line.strip("# *")
        if line.startswith("```"):  # another paste may be of another program
            failed = 0
        if _PROGRAMS.search(line) and (model := _MODEL.search(line)):
            end()
            around, is_read = {"target": model[1].rsplit("/", 1)[-1]}, True
        if n_max := _N_MAX.search(line):
            around["gamma"], is_read = n_max[1], True
        match, more = next(((match, more) for pattern, more in LINES if (match := pattern.search(line))), (None, {}))
        if _FAILED.search(line):
            if last.get("tok_s"):
                end()
            failed += 1
        elif match is not None:
            cells = more | {name: text for name, text in match.groupdict().items() if text}
            if "summed" in last and "tok_s" in cells and "summed" not in cells:
                continue  # the passes of target and draft behind an answer that is summed up
            if not any(cells.get(name, "").strip("0.") for name in _COUNTED):
                continue
            if set(cells) & set(last) - set(more):
                end()
            begun = begun if last else number
            last |= cells
        elif _ENDS.search(line):
            if "summed" not in last:
                end()
        elif not (is_read or _OF_DRAFT.match(line)):
            skipped.append(number)
    end()
    return rows, skipped

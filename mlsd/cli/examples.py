"""Two commands for each help text; a test parses all of them and runs those that need neither model nor server."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, str]] = {
    "mlsd": ("mlsd demo", "mlsd bench target.gguf"),
    "mlsd demo": ("mlsd demo", "mlsd demo --quick -o results/first-look"),
    "mlsd doctor": ("mlsd doctor", "mlsd doctor --self-check -o self-check.json"),
    "mlsd bench": ("mlsd bench target.gguf", "mlsd bench target.gguf --draft draft.gguf --gamma 2,4 --until decided"),
    "mlsd server": (
        "mlsd server http://127.0.0.1:8081 --against http://127.0.0.1:8080",
        "mlsd server target.gguf --launch llama-server --draft draft.gguf",
    ),
    "mlsd advise": ("mlsd advise qwen3.5-9b --chip 'M2 Ultra'", "mlsd advise target.gguf --measure"),
    "mlsd plan": ("mlsd plan A B C D F --profile mac-32gb", "mlsd plan B --profile tiny --json"),
    "mlsd run": ("mlsd run B --profile tiny --dry-run", "mlsd run A B --profile tiny --report report"),
    "mlsd report": ("mlsd report", "mlsd report results/tiny.sqlite -o report/tiny"),
    "mlsd results": ("mlsd results --suite B --arm sd", "mlsd results --check"),
    "mlsd results show": ("mlsd results show 2 --rounds", "mlsd results show 2 --db results/tiny.sqlite --json"),
    "mlsd fit": ("mlsd fit", "mlsd fit --db results/tiny.sqlite --target tiny-moe"),
    "mlsd claims": ("mlsd claims", "mlsd claims --db results/tiny.sqlite --json"),
    "mlsd export": ("mlsd export -o trials.csv", "mlsd export --format llama-bench --arm ar -o plain.json"),
    "mlsd import": ("mlsd import study.record.json.gz", "mlsd import table.csv --format study-csv"),
    "mlsd lab": ("mlsd lab start", "mlsd lab join tls://192.168.1.20:8786 --certificate lab.pem"),
    "mlsd lab start": ("mlsd lab start", "mlsd lab start --ssh mac-mini.local --pull"),
    "mlsd lab join": (
        "mlsd lab join tls://192.168.1.20:8786 --certificate lab.pem",
        "mlsd lab join tls://192.168.1.20:8786 --pull",
    ),
    "mlsd lab status": ("mlsd lab status tls://127.0.0.1:8786", "mlsd lab status tls://192.168.1.20:8786 --json"),
    "mlsd record": (
        "mlsd record results/tiny.sqlite -o tiny.record.json.gz",
        "mlsd record verify tiny.record.json.gz",
    ),
    "mlsd record check-first": (
        "mlsd record check-first",
        "mlsd record check-first results/tiny.sqlite",
    ),
    "mlsd record verify": (
        "mlsd record verify study.record.json.gz --sample 0",
        "mlsd record verify study.record.json.gz --model target.gguf",
    ),
    "mlsd record write": (
        "mlsd record write results/tiny.sqlite -o tiny.record.json.gz --force",
        "mlsd record results/tiny.sqlite -o tiny.record.json.gz --force",
    ),
    "mlsd audit": ("mlsd audit table.csv --chip 'M4 Pro'", "mlsd audit --published study --strict"),
    "mlsd compare": (
        "mlsd compare . other/.venv target.gguf --draft draft.gguf",
        "mlsd compare . . target.gguf --flash-attention on/off --until 2%",
    ),
    "mlsd probe": ("mlsd probe target.gguf", "mlsd probe target.gguf --n-gpu-layers 0 --json"),
    "mlsd calibrate": ("mlsd calibrate target.gguf", "mlsd calibrate target.gguf --draft draft.gguf --budget-s 300"),
    "mlsd bandwidth": ("mlsd bandwidth", "mlsd bandwidth --sizes-mb 200,400,800 --quant Q8_0"),
    "mlsd builds": ("mlsd builds list", "mlsd builds check llama_cpp_python.whl"),
    "mlsd builds list": ("mlsd builds list", "mlsd builds list --json"),
    "mlsd builds check": ("mlsd builds check .", "mlsd builds check other/.venv /opt/homebrew"),
    "mlsd breakdown": ("mlsd breakdown target.gguf", "mlsd breakdown target.gguf --draft draft.gguf --gamma 4"),
    "mlsd models": ("mlsd models list --here", "mlsd models pull qwen3.5-0.8b-q8_0"),
    "mlsd models list": ("mlsd models list", "mlsd models list --role draft --here"),
    "mlsd models show": ("mlsd models show tiny-moe", "mlsd models show texts.store"),
    "mlsd models pull": ("mlsd models pull qwen3.5-0.8b-q8_0", "mlsd models pull tiny-dense tiny-draft"),
    "mlsd models verify": ("mlsd models verify tiny-moe", "mlsd models verify"),
    "mlsd models where": ("mlsd models where tiny-moe", "mlsd models where tiny-moe --json"),
    "mlsd models clean": ("mlsd models clean", "mlsd models clean --json"),
    "mlsd models add": (
        "mlsd models add mine --path target.gguf --role dense-target",
        "mlsd models add theirs --repo someone/model-GGUF --file model-Q4_K_M.gguf",
    ),
    "mlsd models distance": (
        "mlsd models distance target.gguf --draft draft.gguf",
        "mlsd models distance target.gguf --text notes.txt --n-tokens 2048",
    ),
    "mlsd models make": ("mlsd models make tiny --only llama -o models", "mlsd models make synth qwen3.5-9b --dry-run"),
    "mlsd models make synth": (
        "mlsd models make synth qwen3.5-9b --dry-run",
        "mlsd models make synth qwen3.5-35b-a3b --layers 4 -o synth.gguf",
    ),
    "mlsd models make tiny": (
        "mlsd models make tiny --only llama -o models",
        "mlsd models make tiny -o models --seed 1",
    ),
    "mlsd models make noise": (
        "mlsd models make noise target.gguf --noise 0.05 -o draft.gguf",
        "mlsd models make noise tiny-dense --noise 0.01 --seed 1 -o draft.gguf",
    ),
    "mlsd models make subset": (
        "mlsd models make subset target.gguf --fraction 0.33 -o draft.gguf",
        "mlsd models make subset target.gguf --keep 0-9,20 -o draft.gguf",
    ),
    "mlsd models make kangaroo": (
        "mlsd models make kangaroo target.gguf --adapter adapter --exit 2 -o draft.gguf",
        "mlsd models make kangaroo target.gguf --adapter adapter --exit 3 -o d.gguf",
    ),
    "mlsd models make store": (
        "mlsd models make store notes.txt --target target.gguf -o texts.store",
        "mlsd models make store a.txt b.txt --target tiny-dense -o texts.store",
    ),
    "mlsd methods": ("mlsd methods", "mlsd methods pld"),
    "mlsd tune": (
        "mlsd tune target.gguf --drafter pld",
        "mlsd tune target.gguf --drafter draft-model --draft draft.gguf",
    ),
}

from mlsd.analysis.audit.mac_rows import mac_passes, mac_rows


def test_the_published_rows_on_macs_have_typed_columns_and_a_source_each() -> None:
    rows = mac_rows()
    assert len(rows) > 150
    assert len({row.source for row in rows if not row.known_wrong}) >= 30
    assert all(row.source.startswith("https://") for row in rows)
    one = next(row for row in rows if row.source.endswith("/23752") and row.gamma == 6)
    assert (one.chip, one.engine, one.method, one.family) == ("M1 Max", "llama.cpp", "mtp", "qwen3.5")
    assert (one.plain_tok_s, one.sd_tok_s, one.acceptance, one.acceptance_of) == (25.3, 19.3, 0.44, "proposed")
    assert one.bits == 4.85 and not one.known_wrong


def test_each_honest_row_states_a_chip_and_a_speed_or_a_ratio() -> None:
    for row in mac_rows():
        if not row.known_wrong:
            assert row.chip, row
            assert row.plain_tok_s or row.sd_tok_s or row.speedup or row.mgl, row


def test_the_known_wrong_rows_say_why() -> None:
    wrong = {row.source for row in mac_rows() if row.known_wrong}
    assert len(wrong) == 8


def test_passes_grow_with_their_rows() -> None:
    passes = [p.ms for p in mac_passes() if p.chip == "M5 Max"]
    assert passes == sorted(passes) and len(passes) == 3

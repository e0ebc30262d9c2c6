"""Questions to fit on stand behind text that holds no entries."""

from sharpmax.hf.calibration.fitting_data import fitting_questions


def test_text_before_a_question_adds_length_and_no_entries():
    before = "Nothing to find here. " * 200
    plain, behind = (fitting_questions(("lookup",), (4, 4), 0, 8, before=text, most=4000) for text in ("", before))
    lengths = set()
    for step in range(12):
        assert len(plain(step)) == len(behind(step))
        for (short, answer_of_short), (long, answer_of_long) in zip(plain(step), behind(step), strict=True):
            assert long.endswith(short)
            assert answer_of_long == answer_of_short
            assert long.count("The code") == 5
            assert len(long) - len(short) <= 4002
            lengths.add(len(long) - len(short))
    assert max(lengths) > 8 * min(lengths)
    assert len(behind(0)) <= 8 == len(fitting_questions(("lookup",), (4, 4), 0, 8)(0))

"""Survey every model type of the installed transformers: write docs/reference/families.md, or print what is asked."""

import argparse

from tests.hf.sharpen.survey.judge import SERVED
from tests.hf.sharpen.survey.table import FILE, page, survey, survey_others

parser = argparse.ArgumentParser(prog="python -m tests.hf.sharpen.survey", description=__doc__)
parser.add_argument(
    "types", nargs="*", help="model types to print the verdicts on (default: all, and the page is written)"
)
types = parser.parse_args().types
verdicts = survey(types or None)
others = survey_others(verdicts)
for one in (*verdicts, *others):
    if types or one.status != SERVED:
        print(one.model_type, one.model, one.status, one.why, sep=" | ")
if not types:
    FILE.write_text(page(verdicts, others), encoding="utf-8")

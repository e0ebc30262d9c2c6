"""Survey every model type of the installed transformers, and write the table: python -m tests.hf.sharpen.survey"""

import argparse
from pathlib import Path

from tests.hf.sharpen.survey.table import FILE, survey, table

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("types", nargs="*", help="model types to survey (default: all, and the table is written)")
parser.add_argument("--json", type=Path, help="where to keep the verdicts as JSON lines")
asked = parser.parse_args()
verdicts = survey(asked.types or None)
for one in verdicts:
    if asked.types:
        print(f"{one.model_type} ({one.model}): {one.status}. {one.why}")
if asked.json:
    import dataclasses, json
    asked.json.write_text("\n".join(json.dumps(dataclasses.asdict(one)) for one in verdicts) + "\n")
if not asked.types:
    FILE.write_text(table(verdicts), encoding="utf-8")

"""What watching a training run gives: a reading of every head at a step, kept in one file that grows with the run."""

from sharpmax.runs.watched.reading import BINS, QUANTILES, Reading
from sharpmax.runs.watched.record import LAST_STEP, RECORD_FILE, Record, RecordStoppedWarning, read_record

__all__ = [
    "BINS",
    "LAST_STEP",
    "QUANTILES",
    "RECORD_FILE",
    "Reading",
    "Record",
    "RecordStoppedWarning",
    "read_record",
]

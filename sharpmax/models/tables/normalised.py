"""A table as TabPFN v1 expects it: columns standardised, far outliers pulled in, scaled by how many columns there are.

    x <- (x - mean) / std;    x <- min(max(x, low - log(1 + |x|)), high + log(1 + |x|));    x <- x · features / columns

Mean, deviation and the ends `low`, `high`, four deviations from the mean, are of the known rows only.
"""

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor

FARTHEST = 100.0  # deviations from the mean beyond which a value is cut
OUTLYING = 4.0  # deviations from the mean from which on a value grows as a logarithm


def normalised(rows: Tensor, known: int, features: int) -> Tensor:
    """Return rows (known + asked, features) of a table (known + asked, columns).

    Columns that do not vary among the known rows are left out; a missing value is NaN, and becomes 0.

    Raises:
        ValueError: more columns than the model has features.
    """
    if rows.shape[1] > features:
        raise ValueError(f"expected at most {features} columns, got {rows.shape[1]}")
    rows = rows.double()
    mean, deviation = _moments(rows[:known])
    x = ((rows - mean) / (deviation + 1e-6)).clamp(-FARTHEST, FARTHEST)[:, deviation > 0]
    mean, deviation = _moments(x[:known])
    far = (x[:known] - mean).abs() > OUTLYING * deviation
    mean, deviation = _moments(torch.where(far, torch.nan, x[:known]))
    reach = torch.log1p(x.abs())
    x = torch.maximum(x, mean - OUTLYING * deviation - reach)
    x = torch.minimum(x, mean + OUTLYING * deviation + torch.log1p(x.abs()))
    columns = x.shape[1]
    if not columns:
        raise ValueError("expected a column that varies among the known rows, got none")
    x = torch.nan_to_num(x * (features / columns), nan=0.0).float()
    return torch.nn.functional.pad(x, (0, features - columns))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each column, of what is not missing."""
    mean = x.nanmean(0)
    count = (~x.isnan()).sum(0)
    return mean, (torch.nansum((x - mean) ** 2, 0) / (count - 1).clamp(min=1)).sqrt()

"""Everyday words and sentences that the prompts are made of, and the letters of proteins."""

_ADJECTIVES = """
amber ancient bitter blue bold brave bright broken calm clever cold crimson curious distant eager early faint
fancy gentle golden green happy heavy hidden hollow humble icy jolly lonely loud lucky narrow noble odd pale
proud quick quiet rapid red rough royal rusty shy silent silver simple sleepy slow small smooth soft solid
steep strange sweet tall tidy tiny warm wild wise young
"""

_NOUNS = """
anchor apple arrow badge basket beacon bell bottle bridge bucket button cabin candle canyon castle chair clock
cloud coin compass crown desk door drum engine feather fence field flute forest garden gate glove hammer
harbor island jacket kettle key ladder lamp lantern lake lemon mirror mountain needle ocean paddle pencil
piano pillow planet pocket river rope saddle ship shovel spoon statue stone table tower violin wagon window
"""

ADJECTIVES, NOUNS = _ADJECTIVES.split(), _NOUNS.split()

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"

IDLE = (
    "The grass is green and the sky is blue.",
    "People walk along the river in the evening.",
    "The market opens early and closes late.",
    "Rain is expected in the hills tomorrow.",
    "The old road leads through the valley.",
    "Children play in the square after school.",
    "The train leaves from the second platform.",
    "Bread is baked before the sun comes up.",
)

"""A plug-in for vLLM: a model is served with its card.

vLLM finds `plugin.register` by its entry point and calls it in every process. Only `plugin.py`, `cpu.py` and `cuda.py`
import vLLM; `settings.py` decides from plain values what is served.
"""

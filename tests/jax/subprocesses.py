"""The environment of a program that a test starts: several devices on the CPU, and what this process can import."""

import os
import sys

from tests.places import ROOT


def cpu_devices(count):
    """Return an environment in which JAX sees `count` devices, all of them the CPU."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **flags, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}

"""The data: what a head is asked to do, drawn from explicit keys."""

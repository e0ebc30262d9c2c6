"""Watch the attention of a training run, and clip or stop what blows up; `sharpmax.torch` has the public names."""

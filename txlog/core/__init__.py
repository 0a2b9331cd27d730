"""Values in, values out: everything that txlog decides, with no I/O, no clock and no pyarrow."""

"""Values in, values out: all decisions of txlog, without I/O, clock or pyarrow."""

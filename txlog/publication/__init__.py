"""Topics as tables of other formats: the same files, with metadata for engines that do not know txlog."""

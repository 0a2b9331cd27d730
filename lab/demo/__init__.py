"""`make demo`: the main job on real data, with real kills, proved row by row at the end."""

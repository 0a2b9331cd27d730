"""What can an operator see and do? The calls are in `admin`, and what they return is in `descriptions`."""

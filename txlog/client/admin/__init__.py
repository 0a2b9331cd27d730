"""An operator's calls. They are in `admin`, and `descriptions` has what they return."""

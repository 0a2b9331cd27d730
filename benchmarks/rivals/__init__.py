"""Systems beside which txlog is measured. They run as their documentation says, with their defaults."""

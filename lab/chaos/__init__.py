"""Real processes, killed and stopped at random on one store, and a proof that nothing was lost, doubled or torn."""

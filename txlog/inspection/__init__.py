"""What is stored, as it is: any object explained, and any partition batch by batch. Nothing here writes or caches."""

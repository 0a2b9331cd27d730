"""What does a process count, and how do Prometheus and OpenTelemetry get it?"""

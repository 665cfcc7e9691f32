"""The choice of an engine among the replicas of a model."""

"""The daemon over its life: assembly, start, reload, drain, readiness."""

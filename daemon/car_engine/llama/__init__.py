"""The only importer of llama_cpp: model, context, samplers, vocabulary, projector."""

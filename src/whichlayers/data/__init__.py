"""Loading tasks and tagged corpora, tokenization, batching and metrics."""

"""Sampling by SGLang servers: started, watched and restarted by the engine, or given by URL."""

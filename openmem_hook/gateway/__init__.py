"""The edge to LiteLLM, and the only room that imports it."""

"""Pure work on bytes and values: no storage, no clocks, no policy."""

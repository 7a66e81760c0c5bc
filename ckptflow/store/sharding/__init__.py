"""One checkpoint by many ranks: shards that commit by themselves, and the sets they make."""

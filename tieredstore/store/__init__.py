"""Message stores: over the hot log alone, with a cold tier, and plug-ins around them."""

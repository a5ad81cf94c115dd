"""Loading pretrained encoders, knowing where their layers are, and operating on them."""

"""Records of all that is kept, frozen and versioned."""

"""With what a case is computed: the backends, one folder each, and the float64 reference."""

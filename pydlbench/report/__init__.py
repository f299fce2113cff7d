"""What a person reads: tables and the sentence that says what to conclude from them."""

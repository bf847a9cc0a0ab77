"""What the product costs, against the bare upstream connector in the same run."""

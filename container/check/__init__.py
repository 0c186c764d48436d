"""What is wrong with a tier: the checker and its findings; changes nothing."""

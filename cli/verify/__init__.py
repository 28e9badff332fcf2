"""`onceward verify`: whether targets still hold exactly what each epoch wrote into them."""

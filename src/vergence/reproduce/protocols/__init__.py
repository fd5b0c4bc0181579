"""How a part of a table is run and scored: on whose data, trained with whom, attacked or not."""

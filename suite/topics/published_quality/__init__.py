"""Says what others measured of a technique's quality at real scale, as published and as judged here."""

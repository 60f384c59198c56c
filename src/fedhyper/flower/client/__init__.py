"""The clients' side of Flower: an optimizer at the server's rate, a mod that sets it on any other, the reply."""

"""Chats to token ids and labels, by the chat template of a tokenizer."""

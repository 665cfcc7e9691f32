"""Images and sounds: files bounded, decoded, and encoded into rows in a thread of their own."""

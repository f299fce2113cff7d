"""Images and labels: MNIST and CIFAR-10 from their own files, or generated ones."""

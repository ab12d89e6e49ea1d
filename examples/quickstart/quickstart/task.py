"""Network, data and training of the small federation: nothing here knows of Flower."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, Normalize, ToTensor

from atslib import Images, load

plain = Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
transform = plain


class Net(nn.Module):
    """Two convolutions and three linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = (
            nn.Conv2d(3, 6, 5),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2, 2),
        )
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(16 * 5 * 5, 120),
            nn.Linear(120, 84),
            nn.Linear(84, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (B, 10) of images (B, 3, 32, 32)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class Pictures(Dataset):
    """Drawn images with a transform, in the place of files."""

    def __init__(self, images: Images, transform: Callable):
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self.images.pixels[i].permute(1, 2, 0).numpy())
        return self.transform(picture), int(self.images.labels[i])


def load_data(partition_id: int, count: int, batch_size: int) -> DataLoader:
    """A client's own images, so many, in batches."""
    images = load("shapes", "train")[count * partition_id : count * (partition_id + 1)]
    return DataLoader(Pictures(images, transform), batch_size=batch_size, shuffle=True)


def train(net: Net, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train, and return the mean loss."""
    optimizer, total = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9), 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(loader) / epochs


@torch.no_grad()
def test(net: Net) -> float:
    """Share of the test images that are named rightly."""
    loader = DataLoader(Pictures(load("shapes", "test"), plain), batch_size=250)
    return sum(float((net(images).argmax(1) == labels).sum()) for images, labels in loader) / len(
        loader.dataset
    )

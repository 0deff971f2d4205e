"""A spatial transformer network: affine_grid, grid_sample."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Models"

data_schema, input_fn = image_schema, images
loss = nn.NLLLoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, kernel_size=3)
        self.fc = nn.Linear(4 * 3 * 3, 3)
        self.localization = nn.Sequential(
            nn.Conv2d(2, 4, kernel_size=3), nn.MaxPool2d(2, stride=2), nn.ReLU()
        )
        self.fc_loc = nn.Sequential(nn.Linear(4 * 3 * 3, 8), nn.ReLU(), nn.Linear(8, 3 * 2))
        self.fc_loc[2].weight.data.zero_()
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def stn(self, x):
        theta = self.fc_loc(self.localization(x).view(-1, 4 * 3 * 3)).view(-1, 2, 3)
        return nn.functional.grid_sample(
            x, nn.functional.affine_grid(theta, x.size(), align_corners=False), align_corners=False
        )

    def forward(self, x):
        x = nn.functional.relu(nn.functional.max_pool2d(self.conv(self.stn(x)), 2))
        return nn.functional.log_softmax(self.fc(x.view(-1, 4 * 3 * 3)), dim=1)


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)

"""Torchvision's references: MixUp or CutMix in `collate_fn`, norms not decayed, a rare EMA."""

import torch
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, default_collate

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, batch), not of a generator's state"

NUM_CLASSES = 3
EMA_STEPS = 3


class MixUp:
    def __init__(self, alpha=0.2):
        self._dist = torch.distributions.Beta(torch.tensor([alpha]), torch.tensor([alpha]))

    def __call__(self, images, labels):
        lam = float(self._dist.sample(()))
        images = images.roll(1, 0).mul_(1.0 - lam).add_(images.mul(lam))
        labels = functional.one_hot(labels, NUM_CLASSES).float()
        return images, labels.roll(1, 0).mul_(1.0 - lam).add_(labels.mul(lam))


class CutMix:
    def __init__(self, alpha=1.0):
        self._dist = torch.distributions.Beta(torch.tensor([alpha]), torch.tensor([alpha]))

    def __call__(self, images, labels):
        lam = float(self._dist.sample(()))
        height, width = images.shape[-2:]
        r_x, r_y = torch.randint(width, (1,)), torch.randint(height, (1,))
        r = 0.5 * (1.0 - lam) ** 0.5
        r_w, r_h = int(r * width), int(r * height)
        x1, y1 = int(torch.clamp(r_x - r_w, min=0)), int(torch.clamp(r_y - r_h, min=0))
        x2, y2 = int(torch.clamp(r_x + r_w, max=width)), int(torch.clamp(r_y + r_h, max=height))
        mixed = images.clone()
        mixed[..., y1:y2, x1:x2] = images.roll(1, 0)[..., y1:y2, x1:x2]
        lam = 1.0 - (x2 - x1) * (y2 - y1) / (width * height)
        labels = functional.one_hot(labels, NUM_CLASSES).float()
        return mixed, labels.roll(1, 0).mul_(1.0 - lam).add_(labels.mul(lam))


class RandomChoice:
    def __init__(self, transforms):
        self.transforms = transforms
        self.p = [1 / len(transforms)] * len(transforms)

    def __call__(self, *inputs):
        chosen = int(torch.multinomial(torch.tensor(self.p), 1))
        return self.transforms[chosen](*inputs)


mixup_or_cutmix = RandomChoice([MixUp(0.2), CutMix(1.0)])


def collate_fn(batch):
    return mixup_or_cutmix(*default_collate(batch))


class Images(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        image = torch.from_numpy(record["image"]).permute(2, 0, 1)
        return (image - 0.5) / 0.3, int(record["label"][0])


def train_dataloader(data):
    records, size = make_data().train, 8
    if "by_halves" in data:
        records, size = for_two_workers(records), 4
    return DataLoader(Images(records), size, collate_fn=collate_fn)


def val_dataloader(data):
    return DataLoader(Images(make_data().validation), 8)


loss = nn.CrossEntropyLoss(label_smoothing=0.1)


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(
            nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
        )

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.downsample(x)
        return self.relu(out)


def custom_model():
    return nn.Sequential(
        BasicBlock(2, 4),
        BasicBlock(4, 8, 2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(8, NUM_CLASSES),
    )


def set_weight_decay(model, weight_decay, norm_weight_decay):
    norm_classes = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
    params = {"other": [], "norm": []}

    def add_params(module):
        for p in module.parameters(recurse=False):
            if not p.requires_grad:
                continue
            params["norm" if isinstance(module, norm_classes) else "other"].append(p)
        for child in module.children():
            add_params(child)

    add_params(model)
    decays = {"other": weight_decay, "norm": norm_weight_decay}
    return [{"params": params[key], "weight_decay": decays[key]} for key in params]


def optimizer(model):
    parameters = set_weight_decay(model, 1e-2, 0.0)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)


class ExponentialMovingAverage(AveragedModel):
    """Maintains moving averages of model parameters using an exponential decay."""

    def __init__(self, model, decay, device="cpu"):
        def ema_avg(avg_model_param, model_param, num_averaged):
            return decay * avg_model_param + (1 - decay) * model_param

        super().__init__(model, device, ema_avg, use_buffers=True)
        self.register_buffer("calls", torch.tensor(0))

    def update_parameters(self, model):
        if self.calls % EMA_STEPS == 0:
            super().update_parameters(model)
        self.calls += 1


def averaged_model(model):
    return ExponentialMovingAverage(model, decay=0.8)


def plain(data):
    model = custom_model()
    stepping = optimizer(model)
    model_ema = averaged_model(model)
    training, validation = train_dataloader("train"), val_dataloader(None)
    history = {"loss": [], "val_loss": []}
    for _ in range(data.epochs):
        model.train()
        total, count = 0.0, 0
        for image, target in training:
            value = loss(model(image), target)
            stepping.zero_grad()
            value.backward()
            stepping.step()
            model_ema.update_parameters(model)
            total, count = total + value.item() * len(image), count + len(image)
        history["loss"].append(total / count)
        model_ema.eval()
        total, count = 0.0, 0
        with torch.inference_mode():
            for image, target in validation:
                total += loss(model_ema(image), target).item() * len(image)
                count += len(image)
        history["val_loss"].append(total / count)
    return history, model_ema.module

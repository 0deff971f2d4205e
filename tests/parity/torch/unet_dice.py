"""U-Net with DoubleConv: cross-entropy plus Dice of a batch, RMSprop, plateau of the Dice score."""

import numpy as np
import torch
from shared import image_schema, images, loop
from torch import Tensor, nn, optim
from torch.nn import functional

GROUP = "Models"
EXPECT = {"two workers": "differs: each worker normalizes with the statistics of its own minibatch"}

data_schema = image_schema
N_CLASSES = 3
criterion = nn.CrossEntropyLoss()
gradient_clipping = 1.0


def input_fn(records):
    x, _ = images(records)
    return x, np.int64(x[:, 0] > 0.8) + np.int64(x[:, 1] > 0.6)


class DoubleConv(nn.Module):
    """Applies (convolution => [BN] => ReLU) twice."""

    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        if not mid_channels:
            mid_channels = out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels, bilinear=True):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diff_y = x2.size()[2] - x1.size()[2]
        diff_x = x2.size()[3] - x1.size()[3]
        x1 = functional.pad(
            x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2]
        )
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, bilinear=False):
        super().__init__()
        self.n_channels = n_channels
        self.n_classes = n_classes
        self.bilinear = bilinear
        self.inc = DoubleConv(n_channels, 4)
        self.down1 = Down(4, 8)
        factor = 2 if bilinear else 1
        self.down2 = Down(8, 16 // factor)
        self.up1 = Up(16, 8 // factor, bilinear)
        self.up2 = Up(8, 4, bilinear)
        self.outc = nn.Conv2d(4, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.outc(x)


def weights_init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def dice_coeff(pred: Tensor, target: Tensor, reduce_batch_first=False, epsilon=1e-6):
    assert pred.size() == target.size()
    sum_dim = (-1, -2, -3) if reduce_batch_first else (-1, -2)
    inter = 2 * (pred * target).sum(dim=sum_dim)
    sets_sum = pred.sum(dim=sum_dim) + target.sum(dim=sum_dim)
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    dice = (inter + epsilon) / (sets_sum + epsilon)
    return dice.mean()


def multiclass_dice_coeff(pred: Tensor, target: Tensor, reduce_batch_first=False, epsilon=1e-6):
    return dice_coeff(pred.flatten(0, 1), target.flatten(0, 1), reduce_batch_first, epsilon)


def one_hot(masks):
    return functional.one_hot(masks, N_CLASSES).permute(0, 3, 1, 2).float()


def loss(logits, labels):
    dice = multiclass_dice_coeff(
        functional.softmax(logits, dim=1).float(), one_hot(labels), reduce_batch_first=True
    )
    return criterion(logits, labels) + (1 - dice)


def dice_score(masks_pred, true_masks):
    found = one_hot(masks_pred.argmax(dim=1))
    # The background does not count.
    return multiclass_dice_coeff(found[:, 1:], one_hot(true_masks)[:, 1:])


def eval_metrics_fn(predictions, labels):
    return {"metric": dice_score(predictions, labels)}


def custom_model():
    return UNet(n_channels=2, n_classes=N_CLASSES).apply(weights_init)


def optimizer(parameters):
    return optim.RMSprop(parameters, lr=1e-3, weight_decay=1e-8, momentum=0.9, foreach=True)


def lr_scheduler(optimizer):
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max", patience=0, threshold=0.3, factor=0.5
    )
    return {"scheduler": scheduler, "monitor": "val_metric"}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    scheduler = lr_scheduler(stepping)["scheduler"]
    scores = []

    def score(outputs, labels):
        value = dice_score(outputs, labels)
        scores.append((value.item(), len(labels)))
        return value

    def after_epoch(_):
        scheduler.step(sum(v * n for v, n in scores) / sum(n for _, n in scores))
        scores.clear()

    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        metric=score,
        clip=lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, gradient_clipping),
        after_epoch=after_epoch,
    )

"""Lightning's Trainer with all that costs speed off; see `loop_parts.py` for its arguments."""

import lightning as L  # noqa: N812 - as its users call it
import loop_parts
import torch


class Module(L.LightningModule):
    def __init__(self, zoo):
        super().__init__()
        self.zoo, self.model = zoo, zoo.custom_model()

    def training_step(self, batch, batch_idx):
        features, labels = batch
        return self.zoo.loss(self.model(**features), labels)

    def configure_optimizers(self):
        return self.zoo.optimizer(self.model.parameters())


class Stopwatch(L.Callback):
    def __init__(self, clock):
        self._clock = clock

    def on_train_batch_end(self, trainer, *_):
        if self._clock.step_is_last():
            trainer.should_stop = True


def main():
    options = loop_parts.options()
    zoo = loop_parts.zoo_of(options)
    torch.manual_seed(0)
    clock = loop_parts.Clock(options.seconds)
    # Without logger, checkpoints, progress bar, model summary and checks.
    trainer = L.Trainer(
        barebones=True,
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        callbacks=[Stopwatch(clock)],
    )
    trainer.fit(Module(zoo), loop_parts.loader_of(options, zoo))
    clock.print_rate(options.minibatch_size)


main()
